"""The rehearsal: NeMo-RL's real loop on a CPU, with a tiny model in place of the policy.

shrink.py    what becomes of a scale's sizes
backend.py   the three stand-ins: policy, generation, cluster
rehearse.py  runs it, stops it half-way, resumes it
"""
