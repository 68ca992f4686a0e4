"""`recollect audit`: can the data be read out of these weights?"""
