"""Bone Soup (arXiv 2502.10762): models for any preference between objectives, merged from a few trained backbones."""
