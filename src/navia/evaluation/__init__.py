"""Accuracy and calibration, multiply-accumulates, latency, memory, and what happens layer by layer."""
