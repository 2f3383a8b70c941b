"""What an installed wheel must do at once, anywhere: import, run a real operation, answer. Needs no network.

python try_wheel.py      cibuildwheel calls it where the wheel is, and nothing of the checkout
"""

from __future__ import annotations

import sys

import rase
from rase.device import RuntimeDevice

if rase.__file__.startswith(sys.path[0]):
    sys.exit("this is the checkout and not the wheel: call it from another folder")
device = RuntimeDevice.select("cpu")
device.smoke_test()
print("rase", rase.__version__, device.describe())
