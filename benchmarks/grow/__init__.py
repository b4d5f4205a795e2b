"""Do runs grow beyond one device and one machine without needing more of anything than their share?"""
