import sys, time, warnings
import torch, transformers
transformers.logging.set_verbosity_error(); warnings.simplefilter("ignore"); torch.set_num_threads(1)
from cache_checks import outcome_of
from tiny_models import model_types
from collections import Counter
n=Counter(); t0=time.time()
for t in sys.argv[1:] or model_types():
    s=time.time(); o=outcome_of(t); n[o.status]+=1
    print(f"{t:24s} {o.status:10s} {o.memory:15s} {o.worst:.1e} {o.held} {o.change:.0e} {o.reason[:260]} {time.time()-s:.1f}s",flush=True)
print(n, f"{time.time()-t0:.0f}s")
