"""Stand-ins for imports of Megatron-Bridge and megatron-core that need a GPU.

Transformer Engine is absent, as megatron-core's own probes find it; only modules that import it, or
triton, without a probe see empty classes.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import typing
import warnings

import typing_extensions

#: Modules that import Transformer Engine or triton without asking whether they are there.
_UNGUARDED = (
    "megatron.bridge.peft.lora",
    "megatron.bridge.peft.lora_layers",
    "megatron.core.inference.contexts.attention_context.triton.tensor_ops",
    "megatron.core.transformer.moe.paged_stash",
)


def install(packages):
    """Make Megatron's packages importable, after the project's own."""
    warnings.filterwarnings("ignore")
    sys.path.append(packages)
    if sys.version_info < (3, 12):
        typing.override = typing_extensions.override
        typing.TypedDict = typing_extensions.TypedDict
    sys.meta_path.insert(0, _StandIns())


class _StandIns(importlib.abc.MetaPathFinder):
    """Empty classes of Transformer Engine and triton, while an unguarded module is imported."""

    def find_spec(self, name, path=None, target=None):
        if name not in _UNGUARDED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            absent = {name: stub for name, stub in _stubs().items() if name not in sys.modules}
            sys.modules.update(absent)
            try:
                execute(module)
            finally:
                for name in absent:
                    del sys.modules[name]

        spec.loader.exec_module = exec_module
        return spec


def _stubs():
    linear, norm_linear = (type(name, (), {}) for name in ("Linear", "LayerNormLinear"))
    sequential = types.SimpleNamespace(Sequential=type("Sequential", (), {}))
    pytorch = _module("transformer_engine.pytorch", Linear=linear, ops=sequential)
    pytorch.LayerNormLinear = norm_linear
    stubs = {
        "transformer_engine": _module("transformer_engine", pytorch=pytorch),
        "transformer_engine.pytorch": pytorch,
    }
    if importlib.util.find_spec("triton") is None:
        language = _module("triton.language", constexpr=object)
        stubs["triton"] = _module("triton", jit=lambda function: function, language=language)
        stubs["triton.language"] = language
    return stubs


def _module(name, **attributes):
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    return module


def adapt_lora():
    """megatron-core has None in place of Transformer Engine's classes, which LoRA takes for one."""
    from megatron.bridge.peft import module_matcher, utils

    utils.HAVE_TE = False
    for kind in ("COL", "LN_COL", "ROW"):
        setattr(module_matcher, f"HAVE_TE_{kind}_LINEAR", False)
