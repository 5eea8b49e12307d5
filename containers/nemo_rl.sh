#!/usr/bin/env bash
# Run a recipe by NeMo-RL's Python, with Equipoise and the packages that it lacks on PYTHONPATH:
#
#   containers/nemo_rl.sh recipes/grpo_fairness.py --config nemo_configs/medium.yaml
#
# A recipe on NeMo-RL does this by itself. Without words the packages are installed, and no more: for
# an image, or for nodes without a network. NeMo-RL's own environments stay as they are.
#
#   NEMO_RL_PATH            a checkout of NeMo-RL; by default the image's, /opt/nemo-rl
#   NEMO_RL_PYTHON          the Python of its driver; by default the checkout's or the image's
#   EQUIPOISE_OVERLAY_DIR   the folder of the packages; by default ~/.cache/equipoise/nemo_rl
set -euo pipefail

fail() {
    printf 'error: %s\n  %s\n' "$1" "$2" >&2
    exit 1
}

project=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
root=$(realpath -m "${NEMO_RL_PATH:-/opt/nemo-rl}")
python=${NEMO_RL_PYTHON:-$root/.venv/bin/python}
[ -n "${NEMO_RL_PYTHON:-}" ] || [ -x "$python" ] || python=/opt/nemo_rl_venv/bin/python
[ -d "$root/nemo_rl" ] || fail "there is no NeMo-RL at $root" "Start it in NeMo-RL's container, or set NEMO_RL_PATH to a checkout."
[ -x "$python" ] || fail "there is no Python at $python" "Run \`uv sync --locked\` in $root, or name the Python of NeMo-RL's driver in NEMO_RL_PYTHON."

# What NeMo-RL's Python has is never installed beside it, where it would win.
answer=$("$python" -I -c '
import sys, sysconfig
from importlib.util import find_spec
if missing := [name for name in ("pydantic", "ray", "torch") if not find_spec(name)]:
    sys.exit("it has no " + ", ".join(missing))
print(sysconfig.get_config_var("SOABI"), *(p for p in sys.argv[1:] if not find_spec(p.split("==")[0])))
' bm25s==0.3.16 regopy==1.5.2 tyro==1.0.17 docstring_parser==0.18.0 typeguard==4.6.1) || fail "$python cannot run NeMo-RL" "Run \`uv sync --locked\` in $root, or name the Python of NeMo-RL's driver in NEMO_RL_PYTHON."
read -r abi packages <<<"$answer"
beside=$project:$root
if [ -n "$packages" ]; then
    folder=$(realpath -m "${EQUIPOISE_OVERLAY_DIR:-$HOME/.cache/equipoise/nemo_rl}")/$abi-$(cksum <<<"$packages" | tr ' ' -)
    if [ ! -d "$folder" ]; then # made under another name: it is whole or not there, whoever else makes it
        mkdir -p "${folder%/*}" || fail "nothing can be written to ${folder%/*}" "Set EQUIPOISE_OVERLAY_DIR to a folder that can be written to."
        new=$(mktemp -d "$folder.XXXXXX")
        trap 'rm -rf "$new"' EXIT
        read -ra words <<<"$packages"
        "${UV:-uv}" pip install --quiet --directory "$new" --no-deps --python "$python" --target "$new" "${words[@]}" >&2 ||
            fail "$packages cannot be installed" "It needs uv and the package index once. Without a network, fill EQUIPOISE_OVERLAY_DIR where there is one, with the same NeMo-RL: containers/nemo_rl.sh"
        chmod 755 "$new"
        mv -T "$new" "$folder" 2>/dev/null || rm -rf "$new"
    fi
    beside=$folder:$beside
fi
[ $# -gt 0 ] || exit 0

[ -z "${VIRTUAL_ENV:-}" ] || PATH=${PATH//"$VIRTUAL_ENV/bin:"/}
unset PYTHONHOME UV UV_PROJECT_ENVIRONMENT UV_RUN_RECURSION_DEPTH VIRTUAL_ENV # `uv run` of this folder
[ ! -f "${python%/bin/*}/pyvenv.cfg" ] || export UV_PROJECT_ENVIRONMENT=${python%/bin/*}
users=${PYTHONPATH:-} && users=${users#"$beside"} && users=${users#:}
export PATH=${python%/*}:$PATH PYTHONPATH=$beside${users:+:$users} NEMO_RL_PATH=$root NEMO_RL_PYTHON=$python
export RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 # or Ray starts its workers by `uv run`
exec "$python" "$@"
