# SPDX-License-Identifier: GPL-2.0-or-later
"""A kernel tree of a few files that real make and gcc compile as kbuild would.

Its Makefile takes a configuration as it comes, and makes single objects of what the
Makefiles of the directories have.
"""

from __future__ import annotations

MAKEFILE = """\
VERSION = 7
PATCHLEVEL = 3
SUBLEVEL = 4
S := $(patsubst %/,%,$(dir $(abspath $(firstword $(MAKEFILE_LIST)))))
OBJECTS := $(filter %.o,$(MAKECMDGOALS))
CC ?= gcc
FLAGS = -I$(S)/include -include $(O)/auto.h -Wall $(if $(W),-Wunused-macros)

allnoconfig:
\t@cp $(KCONFIG_ALLCONFIG) $(O)/.config
\t@! grep -q FTRACE=y $(O)/.config || echo CONFIG_TRACEPOINTS=y >> $(O)/.config
\t@grep -q DEMO $(O)/.config || echo CONFIG_DEMO=y >> $(O)/.config
randconfig: allnoconfig
\t@echo CONFIG_TRACEPOINTS=y >> $(O)/.config
\t@test $$(($(KCONFIG_SEED) % 2)) = 1 || echo CONFIG_CHANCE=y >> $(O)/.config
$(OBJECTS): %.o: $(O)/%.o ;
$(O)/auto.h: $(O)/.config
\t@sed -n 's/^CONFIG_\\(\\w*\\)=.*/#define CONFIG_\\1 1/p' $< > $@
# It notes what it is asked.
$(O)/tools/objtool/objtool:
\t@mkdir -p $(@D); printf '#!/bin/sh\\necho "$$@" >>"$$0-asked"\\n' > $@; chmod +x $@
$(O)/%.o: $(S)/%.c $(O)/auto.h $(O)/tools/objtool/objtool
\t@mkdir -p $(@D); echo "  CC      $*.o"
\t@$(CC) $(FLAGS) -MMD -MF $@.d -MT $@ -c -o $@ $<
\t@$(if $(C),echo "  CHECK   $*.c"; $(CHECK) $(FLAGS) $<)
\t@printf 'savedcmd_%s := %s\\n' $*.o \\
\t\t'$(CC) $(FLAGS) -Wp,-MMD,x.d -c -o $*.o $< ; ./objtool' > $(@D)/.$(@F).cmd
-include $(addsuffix .d,$(addprefix $(O)/,$(OBJECTS)))
"""
#: What lists the objects of ``$(obj)``, as kbuild's own file of that name does.
MAKEFILE_BUILD = """\
-include include/config/auto.conf
obj-y :=
obj-m :=
-include $(srctree)/$(if $(filter .,$(obj)),Kbuild,$(obj)/Makefile)
p := $(if $(filter-out .,$(obj)),$(obj)/)
real-obj-y := $(addprefix $(p),$(filter-out %/,$(obj-y)))
real-obj-m := $(addprefix $(p),$(filter-out %/,$(obj-m)))
subdir-ym := $(addprefix $(p),$(filter %/,$(obj-y) $(obj-m)))
"""
KCONFIG = """\
mainmenu "demo"
config MODULES
	bool "modules"
	modules
config JUMP_LABEL
	bool "jump labels"
config TRACEPOINTS
	bool
config FTRACE
	bool "tracers"
	select TRACEPOINTS
config DEMO
	tristate "the demo"
config NAP
	bool "naps"
	depends on DEMO
config X86
	def_bool y
"""
TRACEPOINT = """\
#ifdef CONFIG_TRACEPOINTS
#define TRACE(name) static const char used_##name[] \\
	__attribute__((used, section("__tracepoint_check"))) = #name
#define DEFINE_TRACE(name) static const char defined_##name[] \\
	__attribute__((used, section("__tracepoints_strings"))) = #name
#else
#define TRACE(name) extern int none
#define DEFINE_TRACE(name) extern int none
#endif
"""
HEADER = """\
#ifndef DEMO_H
#define DEMO_H
#include <linux/tracepoint.h>
int demo(int nap);
#ifdef CONFIG_NAP
int nap(void);
#else
static inline int nap(void) { return 0; }
#endif
#endif
"""
SOURCE = """\
#include <linux/demo.h>

DEFINE_TRACE(demo_old);

int demo(int seconds)
{
	TRACE(demo_old);
	return seconds + 1;
}
"""
NAP = """\
#include <linux/demo.h>

int nap(void) { return demo(1); }
"""
USER = """\
#include <linux/demo.h>

int user(void);
int user(void) { return demo(2) + nap(); }
"""
DRIVERS = """\
obj-$(CONFIG_DEMO) += demo.o user.o
obj-$(CONFIG_NAP) += nap.o
"""
FILES = {
    "Makefile": MAKEFILE,
    "Kbuild": "obj-y += drivers/\n",
    "Kconfig": KCONFIG,
    "scripts/Makefile.build": MAKEFILE_BUILD,
    "drivers/Makefile": DRIVERS,
    "drivers/demo.c": SOURCE,
    "drivers/nap.c": NAP,
    "drivers/user.c": USER,
    "include/linux/demo.h": HEADER,
    "include/linux/tracepoint.h": TRACEPOINT,
}
BASE_CONFIG = """\
CONFIG_MODULES=y
CONFIG_JUMP_LABEL=y
CONFIG_FTRACE=y
CONFIG_DEBUG_INFO_DWARF5=y
"""
FRAGMENTS = {
    "base.config": BASE_CONFIG,
    "demo.config": "CONFIG_DEMO=m\nCONFIG_NAP=y\n",
}
