# The code of each command as a file: digests of its sources and the shell text of its rules. A rule that runs a command reads it.
#
# Why not `params` of the rule itself: Snakemake 9.27 does not look at a job's own params and shell text when a job upstream must run, even
# if only `ancient` inputs lie between (`DAG.update_needrun` masks them). Training waits for plan and preflight behind such inputs, so with
# a changed plan an edited training code would have gone unseen, in everything after it, too. Files are followed always.


def calling(command):
    """Shell texts of the rules that run a command; a params function, so that all rules are known when it is asked."""

    def shells(wildcards):
        return [rule.shellcmd for rule in workflow.rules if f"scripts/{command} " in str(rule.shellcmd)]

    return shells


# One rule per command, not one wildcard: each source file is a value of its own, and `snakemake -n` names those that differ.
for command in sorted(path.name for path in Path(workflow.basedir, "scripts").glob("*.py")):

    rule:
        name:
            f"code_{Path(command).stem}"
        output:
            code(command),
        params:
            *code_params(command),
            shells=calling(command),
        localrule: True
        shell:
            "printf '%s\\n' {params:q} > {output}"
