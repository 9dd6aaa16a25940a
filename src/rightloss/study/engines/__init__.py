"""Engines that train groups of runs: in this process, in others, or on other machines. Results are the same.

Stage: work, groups → results of each group, as they are done.

    contract     what an engine is; one that runs groups in this process
    processes    in processes of this machine
    on_ray       on a Ray cluster
"""

from .contract import Engine as Engine
from .contract import InProcess as InProcess
from .contract import Report as Report
from .contract import Work as Work
from .on_ray import OnRay as OnRay
from .processes import Processes as Processes
