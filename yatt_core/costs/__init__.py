"""What runs cost: prices of devices, records of what a run is charged, and exact sums of money, energy and carbon."""
