"""Makes the dashboards of shoal: `python -m deploy.grafana.generator` writes deploy/grafana/dashboards.

Each dashboard is a module that lists panels in the words of `panel.py`; `render.py` alone knows Grafana.
"""
