"""How fast a loaded model runs on this machine, and how near to the machine's own limits: ``rase bench``."""
