"""Tables filled from a storage, and all forms in which they are shown.

Level 11 of 15: it reads; only `verifying` trains.

    `results`   FilledTable: rows, cells, sources, verdicts, as plain data
    `render`    text, Markdown and LaTeX of one table
    `papers`    papers and their sections in order, and a line a paper
    `html`      the report's page, from `templates/`
    `write`     sections kept while their inputs do not change; report, CSV, figures
    `comparable`  where measured minus published may be shown
    `packing`   bundles of what fills tables, packed and taken in; `verifying`: trains a sample of one again
    `measured`  results that come with the tasks; `findings`: sentences about them
    `diff`      two reports side by side
    `describe`  one run in full, and what two differ in
    `notebook`  what plans, tables, runs and sweeps look like in Jupyter
"""
