"""The processes of trials, which tests kill or weigh."""

import psutil


def trial_processes(word=""):
    """Return the processes of our Tune trials and Train workers whose title holds a word."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            title = " ".join(child.cmdline())
        except psutil.Error:  # it has just ended
            continue
        if title.startswith("ray::") and "IDLE" not in title and word in title:
            found.append(child)
    return found
