"""The report: every notebook run on one scenario, as self-contained pages with an index.

:func:`capplan.report.build.build_report` makes one.
"""
