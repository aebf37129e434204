"""Carries out a plan on Ray: the only room that starts or joins a cluster.

Level 10 of 15.

    `run`          execute: data, trainings, scores, combinations and measurements of a plan
    `session`      start or join Ray, signals, what the cluster has
    `scheduler`    which training may start next, as Tune's searcher; what predicts, scores and combines beside them
    `trials`       a Tune trial or a Ray Train group around `train.loop`; `callback`: Tune's events
    `datasets`     dataset cache: prepares missing ones, loads them into the object store, releases them
    `streams`      datasets that memory does not hold, in the order of the list
    `scoring`      predictions, scores and measurements as Ray tasks
    `ensembles`    votes, means and selections as Ray actors
    `preemption`   checkpoint on SIGTERM or node drain
    `sweep`        search spaces on Tune; the points it found
    `jobs`         Ray Jobs client; `status`: who trains what
"""
