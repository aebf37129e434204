"""Does what a plan lacks, on Ray: the only room that starts or joins a cluster.

Level 10 of 15.

    `run`          execute: data, trainings, scores, combinations and measurements of a plan
    `session`      start or join Ray, signals, what the cluster has
    `flow`         which training may start next, as Tune's searcher; `after`: what follows a finished one
    `trials`       a Tune trial or a Ray Train group around `train.loop`; `watch`: Tune's events
    `datasets`     datasets made where missing, read into the object store, dropped after their last user
    `streams`      datasets that memory does not hold, in the order of the list
    `scoring`      predictions, scores and measurements as Ray tasks
    `ensembles`    votes, means and selections as Ray actors
    `preemption`   checkpoint on SIGTERM or node drain
    `sweep`        search spaces on Tune; `sweep_result`: the points it found
    `jobs`         Ray Jobs client; `status`: who trains what
"""
