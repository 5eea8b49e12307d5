"""The rehearsal: NeMo-RL's real loop and training worker on a CPU, with a tiny model.

shrink.py              what becomes of a scale's sizes
rehearse.py            runs it, stops it half-way, resumes it
backend.py             the workers that NeMo-RL gets
ray_cluster.py         the Ray that they run on
policy_worker.py       NeMo-RL's training worker; cpu.py does what CUDA does in it
generation_worker.py   a Hugging Face model in place of vLLM
comparison.py          whether training, generation and export are one policy
"""
