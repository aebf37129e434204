"""From tables to the smallest set of work, before anything starts: pure functions of spec and store.

Level 9 of 15.

    `plan`          Plan: unique trainings in waves, predictions, scores, combinations, measurements, and their status
    `graph`         the plan as a dependency graph, and which of its nodes may start; as text and DOT
    `audit`         the plan row by row: fields, view, parent, cost, state
    `cost`          core seconds, corrected by finished runs; node-hours, money and wall-clock time on a cluster
    `cluster_spec`  node types of a Ray cluster file or KubeRay, and their prices
    `gc`            what on a storage no table and no sweep names
"""
