"""bf16 tiles beside the definition of the instruction: every sum in the processor's own order, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from rase._kernels.kernels import Variant, variants
from rase.gguf.formats import FORMATS
from tests.kernels.support import FORMAT_IDS, aligned, random_weights

MISSING = dict(variants()).get("amx", "a build for x86-64")
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"this machine cannot run bf16 tiles: no {MISSING}")
