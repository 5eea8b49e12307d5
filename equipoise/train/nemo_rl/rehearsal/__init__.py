"""The rehearsal: NeMo-RL's real loop and workers on a CPU, with a tiny model.

shrink.py              what becomes of a scale's sizes
rehearse.py            runs it, stops it half-way, resumes it
backend.py             the workers that NeMo-RL gets
ray_cluster.py         the Ray that they run on
policy_worker.py       NeMo-RL's training worker, first_policy_worker.py the older one
policy_on_cpu.py       what both do differently on a CPU; cpu.py does what CUDA does in them
vllm.py                whether vLLM generates, in an environment of its own, or a stand-in
vllm_worker.py         NeMo-RL's generation worker; vllm_process.py is where vLLM has the model
generation_worker.py   the stand-in: a Hugging Face model in place of vLLM's engine
comparison.py          whether training, generation and export are one policy
"""
