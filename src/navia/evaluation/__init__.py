"""how good, how dear: accuracy and calibration, MACs, latency, memory."""
