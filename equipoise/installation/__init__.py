"""NeMo-RL's folders and Pythons, and what they have.

environment.py  which Python environments are NeMo-RL's
nemo_rl.py      where NeMo-RL is, and what is wrong with what is there
megatron.py     which Python has Megatron-Bridge
probe.py        asks NeMo-RL's Python what it has and sees; overlay.py makes what it lacks
"""
