"""Plots of the page, as SVG."""
