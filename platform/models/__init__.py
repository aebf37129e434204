"""Trained models as files, and batch answers without a server.

Level 14 of 15.

    `contract` what a task must offer to be exported, served and used for batch prediction
    `export`   metadata of an exported model: run, config, digests, provenance
    `zoo`      the models that come with a task
    `select`   which of several runs is the best, by a score that no table shows
    `predict`  many files answered over Ray: `retable predict`
"""
