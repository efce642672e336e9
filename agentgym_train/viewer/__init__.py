"""The local web viewer for runs: `agentgym view RUN...`.

`index` stores the location of every episode and follows running runs, `query` translates the page's
filters to SQL and reads episodes, `runs` lists runs and their metrics, `server` is the web server,
and `static/` is the page. Knows nothing about torch, models or tokenizers.
"""
