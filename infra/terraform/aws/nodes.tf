# The machines of a node group: disks, network cards, and placement.

resource "aws_launch_template" "nodes" {
  for_each    = module.plan.node_groups
  name_prefix = "${var.name}-${each.key}-"
  user_data   = each.value.local_nvme ? base64encode(module.plan.local_nvme_user_data) : null

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_size           = each.value.disk_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  # Pods have their own identity and no access to that of the node.
  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  dynamic "placement" {
    for_each = each.value.efa_cards > 0 ? [aws_placement_group.gpu[each.key].name] : []
    content {
      group_name = placement.value
    }
  }

  dynamic "network_interfaces" {
    for_each = range(each.value.efa_cards)
    content {
      network_card_index    = network_interfaces.value
      device_index          = network_interfaces.value == 0 ? 0 : 1
      interface_type        = "efa"
      delete_on_termination = true
      security_groups       = [aws_eks_cluster.this.vpc_config[0].cluster_security_group_id, aws_security_group.efa.id]
    }
  }
}

# Machines of one group are close together, on the same network spine.
resource "aws_placement_group" "gpu" {
  for_each = toset([for name, group in module.plan.node_groups : name if group.efa_cards > 0])
  name     = "${var.name}-${each.key}"
  strategy = "cluster"
}

# EFA needs a security group that allows everything to and from itself.
resource "aws_security_group" "efa" {
  name_prefix = "${var.name}-efa-"
  description = "GPU nodes among themselves"
  vpc_id      = aws_vpc.this.id
}

resource "aws_vpc_security_group_ingress_rule" "efa" {
  security_group_id            = aws_security_group.efa.id
  referenced_security_group_id = aws_security_group.efa.id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_egress_rule" "efa" {
  security_group_id            = aws_security_group.efa.id
  referenced_security_group_id = aws_security_group.efa.id
  ip_protocol                  = "-1"
}
