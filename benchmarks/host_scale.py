def measure_host():
    return []
