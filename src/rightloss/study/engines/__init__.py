"""Where groups of runs are trained: in this process, in others, or on other machines. What comes of them is the same.

Stage: work, groups → results of each group, as they are done.

    contract                 what an engine is
    attempt                  one group, on one thread
    in_process               one after the other, here
    child, processes         in processes of this machine
    on_ray                   on a Ray cluster
"""

from .contract import Engine as Engine
from .contract import Report as Report
from .contract import Work as Work
from .in_process import InProcess as InProcess
from .on_ray import OnRay as OnRay
from .processes import Processes as Processes
