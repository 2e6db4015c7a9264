"""What the end-to-end tests, the demo and the benchmarks share: a registry, images, a private node, a test network.

Standard library only, so that any Python 3.11 or newer runs it without a virtual environment.
"""
