import numpy as np
from numpy.typing import NDArray

def rows(
    weights: NDArray[np.uint32], zeros: NDArray[np.uint32], scales: NDArray[np.uint16], out: NDArray[np.uint8]
) -> None: ...
