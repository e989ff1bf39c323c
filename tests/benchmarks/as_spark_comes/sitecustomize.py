"""On the path of the Python workers in one setting of the latency benchmark: takes back the habit
that busmq_spark applies by itself.
"""

import gc

gc.freeze = lambda: None
