"""How well a queue shares devices: the scheduler's decisions over seven simulated days, beside a queue of whole runs."""
