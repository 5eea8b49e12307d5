"""The reference policy stays that of the first start when a run is resumed.

NeMo-RL's DTensor worker (v0.7.0 and main) loads a checkpoint and copies the reference from
what it has loaded, so that every resume would move what the KL penalty is measured against. Here
such a policy is built as for a first start, and its workers load the checkpoint afterwards. That it
worked is checked at every start, with a digest of each worker's reference.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.config.nemo_rl.assumptions import RELEASE
from equipoise.files.errors import EquipoiseError
from equipoise.run.ledger import Ledger

_KEY = "reference_policy"


def policy_with_first_reference(policy: Callable[..., Any], ledger: Ledger) -> Callable[..., Any]:
    """NeMo-RL's `Policy`, with the reference of the first start that `ledger` remembers."""

    def build(*args: Any, config: Mapping[str, Any], **kwargs: Any) -> Any:
        # DTensor's worker loads before it copies; Megatron's does it right.
        late = bool(config["dtensor_cfg"]["enabled"] and kwargs.get("weights_path"))
        options = {name: kwargs.get(name) for name in ("weights_path", "optimizer_path")}
        # The workers have their own working directories.
        paths = {
            name: str(Path(path).absolute()) if path else None for name, path in options.items()
        }
        settings = kwargs | dict.fromkeys(paths) if late else kwargs
        built = policy(*args, config=config, **settings)
        if late:
            _on_workers(built, "load_checkpoint", **paths)
        digests = _on_workers(built, "__ray_call__", fn=digest_function())
        if kwargs.get("init_reference_model", True) and None in digests:
            raise EquipoiseError(
                "nemo-rl.unknown-reference",
                "this NeMo-RL's workers keep their reference policy under a name that Equipoise "
                "does not know, so nothing could tell whether a resumed run has the same one",
                f"Take NeMo-RL {RELEASE}, or a newer Equipoise.",
            )
        check_reference(digests, ledger)
        return built

    return build


def _on_workers(policy: Any, method: str, **kwargs: Any) -> list[Any]:
    """Call a method of every worker; return the results by rank."""
    import ray

    workers = policy.worker_group.workers
    results: list[Any] = ray.get([getattr(w, method).remote(**kwargs) for w in workers])
    return results


def digest_function() -> Callable[[Any], str | None]:
    """Make the function that hashes a worker's share of the reference; None where it keeps none.

    A local function travels to the worker whole: its environment need not have Equipoise.
    """

    def digest(worker: Any) -> str | None:
        import hashlib

        import torch

        # DTensor's and Megatron's name of it.
        names = ("reference_model_state_dict", "reference_state_dict")
        state = next(filter(None, (getattr(worker, name, None) for name in names)), None)
        if state is None:
            return None
        sha = hashlib.sha256()
        # A fresh adapter's A is random and has no effect, for its B is zero. Megatron's layers have
        # an extra state beside their weights, which need not be a tensor.
        idle = ("lora_A", "_extra_state")
        for name in sorted(name for name in state if not any(word in name for word in idle)):
            tensor = state[name]
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            flat = local.detach().cpu().contiguous().reshape(-1)
            sha.update(name.encode() + flat.view(torch.uint8).numpy().tobytes())
        return sha.hexdigest()

    return digest


def check_reference(digests: Sequence[str | None], ledger: Ledger) -> None:
    """Note the digests of a first start; raise `EquipoiseError` where a later start has others.

    Other numbers of workers share the weights differently, and cannot be compared.
    """
    first = ledger.read().get(_KEY)
    if first is None:
        ledger.update({_KEY: list(digests)})
    elif len(first) == len(digests) and first != list(digests):
        raise EquipoiseError(
            "resume.other-reference",
            "the reference policy is not the one that this run began with, so the KL penalty would "
            "be measured against another model",
            "Put back the model and the versions of NeMo-RL and Automodel of the first start (see "
            "provenance.json), or start a new run.",
        )
