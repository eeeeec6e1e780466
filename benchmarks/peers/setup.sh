#!/bin/sh
# Makes the environment of the peer, TRL 1.12.0, the last release with a PPO trainer. About half a minute.
# Usage: sh benchmarks/peers/setup.sh [FOLDER]    default: benchmarks/peers/.venv
set -eu
HERE="$(cd "$(dirname "$0")" && pwd)"
VENV="${1:-$HERE/.venv}"
TORCH=2.13.0

"${PYTHON:-python3}" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check "$@"; }

# PyPI's torch for Linux brings several GB of CUDA libraries. A pip that is configured for a CPU build is left to it.
if pip index versions torch 2>/dev/null | grep -q "[ ,]$TORCH+cpu"; then
    pip install --no-compile "torch==$TORCH+cpu"
else
    pip install --no-compile "torch==$TORCH+cpu" --index-url https://download.pytorch.org/whl/cpu
fi
# pydantic and msgspec are for our reward function, which the peer is rewarded by too.
pip install --no-compile trl==1.12.0 transformers==5.23.0 accelerate==1.15.0 datasets==5.2.0 pydantic msgspec
"$VENV/bin/python" -c "from trl.experimental.ppo import PPOTrainer"
echo "ready: $VENV/bin/python"
