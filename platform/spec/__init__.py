"""The terms in which a task describes a paper.

Level 7 of 15: values and checks alone; it starts nothing. A task imports this room, `train.worker` and little else.

    `task`       Task, Data, Learner, Dataset, Scale; tasks and tables found by name
    `table`      Table, Figure, Row, Combined, Measurement, Column, Claim, Results; what --rows and --set choose
    `claims`     Verdict, Estimate and the intervals that verdicts rest on
    `space`      Space: what a sweep searches
    `resources`  Requirements of a training, Resources that the user grants
    `arrays`     Array
    `extras`     which optional packages a task lacks
"""
