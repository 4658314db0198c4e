"""Rows -> tables, figures, one page."""
