"""Forecast of the time until each threshold of a resource is met, and attribution of its growth.

Rejected: a line through the last hours, like Prometheus' ``predict_linear``. It extrapolates the morning of a daily
cycle and the rise of a sawtooth, and has no range; ``tests/unit/trend/test_backtest.py`` compares both. Rejected:
models with fitted parameters (exponential smoothing, ARIMA), whose forecast no operator can verify from a chart.
"""
