#ifndef TOKEND_CTL_DOCTOR_H
#define TOKEND_CTL_DOCTOR_H

#include "client/ctl/common/arguments.h"

extern const struct ctl_command ctl_doctor;

#endif
