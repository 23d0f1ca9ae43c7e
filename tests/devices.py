"""Where tests run: marks that several files share."""

import pytest
import torch

no_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, no_cuda])]
