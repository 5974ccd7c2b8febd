from attendre_core.written.base import Writer as Writer
from attendre_core.written.icae import ICAE as ICAE
from attendre_core.written.mart import MART as MART
from attendre_core.written.memformer import Memformer as Memformer
from attendre_core.written.memory import WrittenMemory as WrittenMemory
from attendre_core.written.memory import WrittenState as WrittenState
from attendre_core.written.token_turing import TokenTuring as TokenTuring
