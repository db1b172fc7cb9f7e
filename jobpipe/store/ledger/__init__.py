"""The ledger of a topic: whether each subscription has read exactly the rows that were published

An account of a subscription compares two counts that know nothing of each other: the rows of a range of the log, as its
publisher counted them when it sealed, and those that readers have counted when they handed them on.
"""
