#!/bin/sh
# Creates .venv and installs Rollstream with all its services, for CPU, into it. Does nothing when that is done
# already: .venv/setup-done holds the hash of what was installed. .venv/setup-seconds tells the next demo's report
# how long it took.
set -eu
cd "$(dirname "$0")/.."

PYTHON="${PYTHON:-python3}"
TORCH=2.13.0
CPU_INDEX=https://download.pytorch.org/whl/cpu
NEEDED_GB=5 # 3.8 stay in .venv, the rest are downloads that come and go
DONE=.venv/setup-done
LOG=.venv/setup.log
STAGES='^ *(Collecting|Downloading|Processing|Building|Installing)'

fail() {
    echo "error: $*" >&2
    exit 2
}

# Runs a command with its output in the log, and every 10 seconds says where pip is.
quietly() {
    before=$(wc -l <"$LOG")
    "$@" </dev/null >>"$LOG" 2>&1 &
    child=$!
    trap 'kill $child 2>/dev/null; wait $child; exit 130' INT TERM HUP
    waited=0
    while kill -0 $child 2>/dev/null; do
        sleep 1
        waited=$((waited + 1))
        if [ $((waited % 10)) -eq 0 ]; then
            at=$(tail -n "+$((before + 1))" "$LOG" | grep -E "$STAGES" | tail -n 1 | cut -c 1-90)
            printf '   %3d s %s\n' "$waited" "${at:-still at it}"
        fi
    done
    trap - INT TERM HUP
    if ! wait $child; then
        tail -n 20 "$LOG" >&2
        fail "set-up failed; the lines above are the end of $LOG"
    fi
}

command -v "$PYTHON" >/dev/null || fail "$PYTHON was not found; install Python 3.11 or newer, or set PYTHON"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$PYTHON" --version) is too old; Rollstream needs Python 3.11 or newer (make PYTHON=python3.12 ...)"

wanted=$(cat pyproject.toml scripts/setup.sh | cksum | tr ' ' '-')
if [ -f "$DONE" ] && [ "$(cat "$DONE")" = "$wanted" ]; then
    exit 0
fi

case "$(uname -s) $(uname -m)" in
    "Linux x86_64" | "Linux aarch64" | "Linux arm64") ;;
    *) fail "the CPU build of vLLM has no packages for $(uname -s) on $(uname -m); use Linux on x86_64 or aarch64" ;;
esac

started=$(date +%s)
echo "Setting up .venv (once; a few minutes)"
if [ ! -x .venv/bin/python ]; then
    free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
    [ "$free" -ge "$NEEDED_GB" ] || fail "set-up needs $NEEDED_GB GB of disk, and $free GB are free in $PWD"
    "$PYTHON" -m venv .venv ||
        fail "$PYTHON cannot make a virtual environment; on Debian and Ubuntu install python3-venv"
fi
: >"$LOG"
PIP="env PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 .venv/bin/python -m pip"

# PyPI's torch for Linux brings several GB of CUDA libraries, and vLLM for CPU wants the CPU build by name.
# A pip that is configured for a CPU build (find-links, a mirror) is left to it.
if $PIP index versions torch 2>>"$LOG" | grep -q "[ ,]$TORCH+cpu"; then
    echo "1/4 torch $TORCH for CPU, from where pip is configured for it"
    quietly $PIP install --no-compile "torch==$TORCH+cpu"
else
    echo "1/4 torch $TORCH for CPU, from $CPU_INDEX"
    quietly $PIP install --no-compile "torch==$TORCH+cpu" --index-url "$CPU_INDEX"
fi
echo "2/4 vLLM for CPU, transformers, FastAPI and the others"
quietly $PIP install --no-compile -e '.[rollout-cpu,reward,learner,console,dev]'

# vLLM names these as requirements, needs none of them for text, and cannot be imported with builds of them
# that were made for a CUDA torch.
echo "3/4 removing torchvision, torchaudio and torchcodec, which break vLLM on CPU"
quietly $PIP uninstall -y torchvision torchaudio torchcodec

# Installed without byte code, which for all the files would take a minute; this writes what is really used.
echo "4/4 importing everything once"
quietly env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c "
import services.console.run, services.learner.train, services.reward.app, services.rollout.service
import matplotlib.pyplot, torch.distributed.run, torch.utils.tensorboard, vllm.v1.worker.cpu_worker
from transformers import LlamaForCausalLM
import pytest, hypothesis
"

seconds=$(($(date +%s) - started))
echo "$seconds" >.venv/setup-seconds
echo "$wanted" >"$DONE"
echo "Set up in $seconds s"
