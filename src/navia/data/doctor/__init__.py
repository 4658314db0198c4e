"""What is in a folder of images, what is wrong with it, and what to do with it next.

listing     every folder of the layout is listed once: counts, strangers, empty classes
reading     some images (or all) are decoded as a run would decode them: broken ones, sizes, modes, duplicates
published   which of the published data sets it is
findings    the listing and the reading are held against what that data set holds; misplaced: what lies at a wrong place
examination all of it together, and the commands to run next
"""

from navia.data.doctor.diagnosis import Diagnosis, Sizes
from navia.data.doctor.examination import MODEL, examine

__all__ = ["MODEL", "Diagnosis", "Sizes", "examine"]
