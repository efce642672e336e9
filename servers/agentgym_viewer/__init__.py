"""The local web viewer for runs: `agentgym view RUN...`.

`index` stores the location of every episode, `indexer` follows running runs, `query` translates the
page's filters to SQL, `episodes` reads episodes, `html_page` and `pictures` export and draw them,
`runs` lists runs and their metrics, `api` answers the page, `server` is the web application, and
`static/` is the page. Knows nothing about torch, models or tokenizers.
"""
