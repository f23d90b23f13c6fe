#!/usr/bin/env bash
# Everything that a machine with an NVIDIA GPU can show of bimetal, in six minutes: `./run.sh`, or `./run.sh --full` without hurry.
# It takes driver 580 or newer and CUDA 13.0 (NVRTC and headers): a toolkit, or the packages that come with PyTorch.
set -euo pipefail
cd "$(dirname "$0")"

# The toolkit that is named, that is installed, or whose packages Python has.
if [ -z "${CUDA_PATH:-}" ]; then
    for folder in /usr/local/cuda /usr/local/cuda-13.0 /opt/cuda; do
        if [ -e "$folder/include/cuda_fp16.h" ]; then
            CUDA_PATH="$folder"
            break
        fi
    done
fi
if [ -z "${CUDA_PATH:-}" ] && command -v python3 >/dev/null; then
    CUDA_PATH="$(python3 -c 'import nvidia, os; print(next((d for p in nvidia.__path__ for d in [os.path.join(p, "cu13")] if os.path.exists(d + "/include/cuda_fp16.h")), ""))' 2>/dev/null || true)"
fi
if [ -n "${CUDA_PATH:-}" ]; then
    export CUDA_PATH
    export LD_LIBRARY_PATH="$CUDA_PATH/lib64:$CUDA_PATH/lib:$CUDA_PATH/targets/x86_64-linux/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
exec ./bimetal-gpu all "$@"
