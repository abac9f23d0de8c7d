"""Runs the unmodified example with composer 0.32 on a torch without CUDA.

torchvision's wheel on PyPI is linked with CUDA. Without it, two of its operators are unknown, and
importing it, as composer does, fails. So they are declared here; composer does not call them.
"""

import runpy

import torch

torchvision = torch.library.Library("torchvision", "FRAGMENT")
if not hasattr(torch.ops.torchvision, "nms"):
    for name in ("nms", "qnms"):
        torchvision.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

if __name__ == "__main__":
    runpy.run_path("train_composer.py", run_name="__main__")
