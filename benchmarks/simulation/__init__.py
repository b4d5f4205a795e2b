"""A cluster of virtual engines on simulated time for the product's own driver loop: days in minutes, without
sleeping.
"""
