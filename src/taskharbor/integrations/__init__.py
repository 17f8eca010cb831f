"""TaskHarbor at home in other frameworks: one module per framework, which alone imports it.

Nothing of ours imports this package, so `import taskharbor` loads no framework.
"""
